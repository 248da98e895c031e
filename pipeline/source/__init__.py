"""Where the rows come from: files of one format, opened as chunks of rows."""
