"""The decisions of the parallel consumer: what may be handed out, paused and committed. Pure."""
