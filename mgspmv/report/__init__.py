"""What a pipeline did: records of its steps, and a page that shows them."""
