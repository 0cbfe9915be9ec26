/** Names that lead from any object to those that all code of a process shares. */
const REFUSED = new Set(['__proto__', 'constructor', 'prototype']);

/**
 * Objects whose keys are data: values by column, labels, roles by claim, claims of a trust. A column may be
 * called `constructor`: it becomes a property of its own, and these objects are read by their own keys only.
 * None may be called `__proto__`, because an assignment of that name would replace the prototype.
 */
export const MAPS: ReadonlySet<string> = new Set(['values', 'expected', 'labels', 'roles', 'claims']);

const NO_MAPS: ReadonlySet<string> = new Set();

/** The text of a key can also be written with escapes. */
const MAY_BE_REFUSED = /__proto__|constructor|prototype|\\u/;

/** @returns false if no key of the JSON text can be refused, which is cheaper to find out than to parse it */
export const mayHaveRefusedKey = (text: string): boolean => MAY_BE_REFUSED.test(text);

/**
 * The path of the first key that no JSON of somebody else may have; null if there is none. Reads without
 * recursion, because the value may be nested without a bound.
 * @param maps names of properties whose value is an object with keys of its own
 */
export function refusedKey(json: unknown, maps: ReadonlySet<string> = NO_MAPS): string | null {
  const left: { value: object; path: string; isMap: boolean }[] = [];
  const visit = (value: unknown, path: string, isMap: boolean) => {
    if (typeof value === 'object' && value !== null) left.push({ value, path, isMap });
  };
  visit(json, '', false);
  for (let each = left.pop(); each; each = left.pop()) {
    const { value, path, isMap } = each;
    const isList = Array.isArray(value);
    for (const [key, inner] of Object.entries(value)) {
      if (!isList && REFUSED.has(key) && !(isMap && key !== '__proto__')) return path + key;
      visit(inner, `${path}${key}.`, !isList && !isMap && maps.has(key));
    }
  }
  return null;
}

/** A key that JSON of somebody else may not have. */
export class RefusedKey extends Error {
  override readonly name = 'RefusedKey';
}

/** Parses JSON that somebody else wrote. @throws SyntaxError, RefusedKey */
export function parseForeign(text: string): unknown {
  const json: unknown = JSON.parse(text);
  const key = mayHaveRefusedKey(text) ? refusedKey(json) : null;
  if (key !== null) throw new RefusedKey(`the JSON has the key ${key.slice(0, 200)}`);
  return json;
}
