"""Print a table of the tests in a JUnit file: test, seconds, and passed or why not."""

import sys
import xml.etree.ElementTree as ET

for case in ET.parse(sys.argv[1]).iter("testcase"):
    problem = next((found for kind in ("failure", "error", "skipped") if (found := case.find(kind)) is not None), None)
    why = "passed" if problem is None else f"{problem.tag}: {(problem.get('message') or '').partition(chr(10))[0][:90]}"
    name = f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}"
    print(f"{name[:96]:<96} {float(case.get('time', 0)):7.1f}  {why}")
