"""The dispatcher's decisions, pure: who gets which message when, who leads, what standbys know."""
