/**
 * The name under which an object was created.
 * @param key where the last release stored the name: an alarm that was set before the runtime passed names to
 *   alarms has none
 */
export const objectName = ({ id, storage }: DurableObjectState, key: string): string =>
  id.name ?? storage.kv.get<string>(key) ?? '';
