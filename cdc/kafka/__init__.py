"""All code that talks to Kafka: publishing, delivery, recovery, the checkpoint topic."""
