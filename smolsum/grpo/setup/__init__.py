"""What is made, checked and shown before a run trains."""
