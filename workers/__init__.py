"""The GPU room: engines, drafters, verification. Knows no Ray, no S3 and no Parquet."""
