"""The console: pages for people, which every node serves to their browsers."""
