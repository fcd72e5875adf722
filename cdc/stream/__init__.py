"""Pure logic of the stream: rows become transactions and batches, with their confirmation, order and settlement."""
