"""The dispatcher: messages of a Redis channel or stream, handed to workers, written once.

from waterclock.dispatch import PermanentError      # for handlers
"""

from waterclock.dispatch.config import DispatcherConfig, WorkerConfig
from waterclock.dispatch.process import run_dispatcher, run_worker
from waterclock.dispatch.worker.handlers import Delivery, PermanentError

__all__ = [
    "Delivery",
    "DispatcherConfig",
    "PermanentError",
    "WorkerConfig",
    "run_dispatcher",
    "run_worker",
]
