"""What a job is: its schema, how it is loaded, and what identifies it."""
