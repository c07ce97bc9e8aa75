// The families of the catalogue, one file each, and what several of them need.
#pragma once

#include <string>

#include "faults/fault.h"

namespace quire::fault {

// To add a fault: add it to its family's file. To add a family: add a file, a line here and a line in catalogue.cpp.
void add_index_width(std::vector<Fault>& list);

/// The row as a decode kernel computes it that takes it for request `req`.
Row decode_row(const Facts& facts, Row row, std::int64_t req);
/// A kernel whose query_start_loc is `seen`: later requests overwrite earlier ones, rows of nobody are never written.
void believe_query_start_loc(const Facts& facts, std::vector<std::int64_t> seen, Model& model);
/// A kernel whose seq_lens are `seen`. cached_len follows if the batch has no cached_lens.
void believe_seq_lens(const Facts& facts, std::vector<std::int64_t> seen, Model& model);

/// "0 880 -880 1290 ..." (the first ten).
std::string first_values(const std::vector<std::int64_t>& values);
/// The differences of a query_start_loc, likewise.
std::string lengths_seen(const std::vector<std::int64_t>& query_start_loc);
std::string name_of(DType dtype);

}  // namespace quire::fault
