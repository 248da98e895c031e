"""Objects by key, on local disk or in S3, behind one interface: `base.Store`, opened by `open.open_store`."""
