"""The gRPC API, generated from `proto/waterclock/v1` by `make proto`."""
