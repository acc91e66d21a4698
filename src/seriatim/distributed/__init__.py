"""Work that several processes or machines share."""
