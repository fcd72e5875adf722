"""Everything that speaks to Kafka: publishing, delivery, recovery, the checkpoint topic."""
