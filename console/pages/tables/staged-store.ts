import { STAGED_PREFIX } from '../../app/session.ts';
import { createStore, type Store } from '../../app/store.ts';
import { countOf, type Staged } from './staged.ts';

const stores = new Map<string, Store<Staged>>();

function read(name: string): Staged {
  try {
    return JSON.parse(sessionStorage.getItem(name) ?? '{}') as Staged;
  } catch {
    return {};
  }
}

/**
 * The staged changes of one table. They outlive the page, a reload, and the end of a session, so that nothing that a
 * person typed is lost; a sign-out removes them.
 */
export function stagedOf(userId: string, branchId: string, schema: string, table: string): Store<Staged> {
  const name = `${STAGED_PREFIX}${userId}:${branchId}:${schema}.${table}`;
  const known = stores.get(name);
  // One store as long as the page lives, except that a sign-out has removed what an earlier session staged.
  if (known && (countOf(known.get()) === 0 || sessionStorage.getItem(name) !== null)) return known;
  const store = createStore(read(name));
  store.subscribe(() => {
    const staged = store.get();
    if (Object.keys(staged).length === 0) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, JSON.stringify(staged));
  });
  stores.set(name, store);
  return store;
}
