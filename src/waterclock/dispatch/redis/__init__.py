"""Redis as dispatchers use it: connections, the names of keys, and the scripts."""
