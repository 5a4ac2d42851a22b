// Early return of a status, between rooms that answer with absl::Status.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <utility>

#define ZH_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (absl::Status zh_status_ = (expr); !zh_status_.ok()) return zh_status_; \
  } while (false)

#define ZH_CONCAT_INNER_(a, b) a##b
#define ZH_CONCAT_(a, b) ZH_CONCAT_INNER_(a, b)
#define ZH_ASSIGN_OR_RETURN(lhs, expr) \
  ZH_ASSIGN_OR_RETURN_IMPL_(ZH_CONCAT_(zh_statusor_, __LINE__), lhs, expr)
#define ZH_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr)     \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = std::move(statusor).value()
