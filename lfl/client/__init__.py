"""One client: its model as a function of one flat vector, its optimizer, its random numbers, its evaluation."""
