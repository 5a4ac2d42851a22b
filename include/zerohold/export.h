// Marks what the shared library exports; everything else stays hidden.
#pragma once

#define ZH_EXPORT __attribute__((visibility("default")))
