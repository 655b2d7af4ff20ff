"""Reading topics from Spark: ranges of offsets planned on the driver, frames fetched by tasks."""
