"""Dead letters: written by groups, listed, redriven and purged by people."""
