// The settings that take one of several choices, each as an enum. settings_table.inc lists the
// choices of each in the order of the enumerators, which settings_rows.cc checks, with the
// spellings that the environment takes. This header includes no table, since most of the engine
// includes it.
#pragma once

namespace perseus {

enum class TransportChoice { kAuto, kShm, kTcp, kMpi };
enum class WireChoice { kPlain, kAuthenticated, kEncrypted };
enum class WireDtype { kFp16, kNone, kBf16 };
enum class NanCheck { kOff, kWarn, kRaise, kZero };
enum class AllreduceMode { kAuto, kFlat, kHierarchical };
enum class AllreduceAlgorithm { kAuto, kDirect, kRecursiveDoubling, kRing, kHierarchical };
enum class LogLevel { kTrace, kDebug, kInfo, kWarning, kError, kFatal };
enum class GpuOperations { kAuto, kNccl, kStaged };
enum class CtaPolicy { kDefault, kEfficiency, kZero };

}  // namespace perseus
