"""The dispatcher: messages of a Redis channel or stream, handed to workers, written once.

from waterclock.dispatch import PermanentError      # for handlers
"""

from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.handlers import Delivery, PermanentError
from waterclock.dispatch.running import run_dispatcher, run_worker

__all__ = [
    "Delivery",
    "DispatcherConfig",
    "PermanentError",
    "WorkerConfig",
    "run_dispatcher",
    "run_worker",
]
