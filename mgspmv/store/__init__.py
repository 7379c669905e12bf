"""The matrix store: one Zarr v3 group per matrix. The only package that knows its layout.

    STORE/                              attributes: format_version, current = name of the version to read, older = names
                                        of the kept versions before it, oldest first
      versions/v000001-1f0c9a2e/        attributes: kind, shape, nnz, digests, the CRC-32C of each chunk; an anndata
                                        csr_matrix where it has values
        indptr  indices  [data]         CSR, indices sorted in each row
        [out_degree] [out_weight]       of the columns, for graphs
        [vertex_ids]                    when the ids are not 0..n-1; in the order of the source
        [order]                         source's number of each row, when rows and columns are renumbered
        [transpose/]                    the same CSR arrays of the transpose

A version is written completely before the root names it, and naming it is the last write: a reader sees the old version
or the new one, never a partial one. Groups that the root does not name are not versions. A chunk has `CHUNK_ELEMENTS`
elements, lz4 and a CRC-32C; all chunks are written, so a missing chunk, a flipped bit or a truncated array is an error.

`read` opens versions and `write` creates them; `held` has matrices that are in memory. Lower modules: `versions` (names
in the root, and its writers), `chunks` (of arrays, written whole, by appending or in ranges by several processes),
`access` (to places, with Zarr), `locations` (of stores), `digests` (of arrays and matrices). Those that need no Zarr do
not import it: a graph that is ranked without a store would wait for it.
"""
