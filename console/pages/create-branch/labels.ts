/** The pairs in `pr=42 owner=ada`. A word without `=` is a label without a value. */
export const labelsOf = (text: string): Record<string, string> =>
  Object.fromEntries(
    text
      .split(/\s+/)
      .filter(Boolean)
      .map((word) => {
        const [name = '', ...value] = word.split('=');
        return [name, value.join('=')];
      }),
  );
