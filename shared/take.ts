/** The records of a list, at most `limit` of them. */
export async function take<T>(records: AsyncIterable<T>, limit = Number.POSITIVE_INFINITY): Promise<T[]> {
  const found: T[] = [];
  if (limit === 0) return found;
  for await (const record of records) {
    found.push(record);
    // Before the next record, for which the next page would be read.
    if (found.length === limit) break;
  }
  return found;
}
