"""What makes parts of the documents. Not part of the product."""
