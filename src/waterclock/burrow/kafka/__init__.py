"""The parallel consumer on Kafka: its source, transactions and dead letters."""
