"""The families of requests that steps use; each module has one."""
