"""The control plane's memory: history in the store, receipts in files, and words for both."""
