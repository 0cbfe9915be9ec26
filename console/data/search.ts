/**
 * Validates the search of an address: keeps the parameters with these names, if each is a text that is not
 * empty.
 */
export const texts =
  <Name extends string>(...names: Name[]) =>
  (search: Record<string, unknown>): { [N in Name]?: string } =>
    Object.fromEntries(
      names.flatMap((name) => {
        const value = search[name];
        return typeof value === 'string' && value !== '' ? [[name, value]] : [];
      }),
    ) as { [N in Name]?: string };
