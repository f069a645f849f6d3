#include "execution/results.h"

#include <gtest/gtest.h>

namespace perseus {
namespace {

TEST(Results, RowsAreSpreadAsEvenlyAsCanBeTheFirstRanksTakingOneMore) {
  for (const int64_t rows : {0, 1, 5, 7, 8, 1000}) {
    for (const int size : {1, 2, 3, 7}) {
      int64_t total = 0;
      for (int index = 0; index < size; ++index) {
        const int64_t share = rows_of(rows, size, index);
        EXPECT_GE(share, rows / size);
        EXPECT_LE(share, rows / size + 1);
        if (index > 0) {
          EXPECT_LE(share, rows_of(rows, size, index - 1));
        }
        total += share;
      }
      EXPECT_EQ(total, rows);
    }
  }
}

TEST(Results, ARowIsAllButTheFirstDimension) {
  EXPECT_EQ(row_bytes({DataType::kFloat32, {5, 3, 2}}), 24u);
  EXPECT_EQ(row_bytes({DataType::kFloat64, {5}}), 8u);
  EXPECT_EQ(row_bytes({DataType::kFloat32, {5, 0}}), 0u);
}

TEST(Results, OfAReduceScatterHaveThisRanksRows) {
  Operation operation;
  operation.description.kind = OperationKind::kReduceScatter;
  operation.description.tensors = {{DataType::kFloat32, {5, 2}}};
  operation.tensors.resize(1);
  ASSERT_TRUE(allocate_outputs(operation, 2, 0).is_ok());
  EXPECT_EQ(operation.tensors[0].result_shape, (Shape{3, 2}));
  EXPECT_NE(operation.tensors[0].output, nullptr);
}

TEST(Results, TheCallersMemoryIsUsedWhereThereIsSome) {
  float result[4];
  Operation operation;
  operation.description.tensors = {{DataType::kFloat32, {4}}};
  operation.tensors.resize(1);
  operation.tensors[0].output = reinterpret_cast<std::byte*>(result);
  ASSERT_TRUE(allocate_outputs(operation, 2, 0).is_ok());
  EXPECT_EQ(operation.tensors[0].output, reinterpret_cast<std::byte*>(result));
  EXPECT_EQ(operation.tensors[0].allocated, nullptr);
}

TEST(Results, OfUnevenOperationsWaitForTheRanksSizes) {
  Operation operation;
  operation.description.kind = OperationKind::kAllgather;
  operation.description.tensors = {{DataType::kFloat32, {4}}};
  operation.tensors.resize(1);
  ASSERT_TRUE(allocate_outputs(operation, 2, 0).is_ok());
  EXPECT_EQ(operation.tensors[0].output, nullptr);
}

TEST(Results, NoMemoryIsAnError) {
  OperationTensor tensor;
  EXPECT_EQ(allocate_output(tensor, uint64_t{1} << 60).code(), StatusCode::kOutOfMemory);
  EXPECT_TRUE(allocate_output(tensor, 0).is_ok());
  EXPECT_EQ(tensor.output, nullptr);
}

}  // namespace
}  // namespace perseus
