"""A store as one HTML page that needs nothing else: charts, tables, figures, provenance."""
