"""The coordinator that etcd is: its API over gRPC, several members, users, watches that go on."""
