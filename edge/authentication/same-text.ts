const digest = (text: string) => crypto.subtle.digest('SHA-256', new TextEncoder().encode(text));

/** Compares digests of equal length in constant time, so that timing does not reveal a matching prefix. */
export async function isSameText(given: string, expected: string): Promise<boolean> {
  const [one, other] = await Promise.all([digest(given), digest(expected)]);
  return crypto.subtle.timingSafeEqual(one, other);
}
