"""The pages, the forms that they send, and their live parts."""
