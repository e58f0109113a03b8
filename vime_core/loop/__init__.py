"""The loops. They know no algorithm, model or device by name."""
