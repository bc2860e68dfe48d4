"""What is said when data are missing or wrong."""


class DataError(ValueError):
    """Data that are missing, damaged or not what they are called, in one sentence that says what to do."""


class OtherDataError(DataError):
    """A file that is an official one, of another data set."""


def missing_package(data: str, package: str) -> DataError:
    """The error for a data set that needs a package which is not installed."""
    return DataError(f"{data} needs {package}; pip install '.[lab]' in trimtab's source folder gets it")
