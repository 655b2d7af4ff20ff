"""What nodes agree on through etcd: the interface, its requests and errors, a fake. Pure."""
