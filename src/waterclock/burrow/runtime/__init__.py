"""The parallel consumer, driven: the pool, its workers, and what it reads from."""
