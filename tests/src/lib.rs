//! The lab: virtual machines, loop disks and image servers with faults.
