import { groupOf, type Holdings } from '../../shared/protocol/inventory-digest.ts';
import type { MethodResult, Params } from '../../shared/protocol/operations.ts';
import type { Host } from '../host.ts';
import { readHoldings } from './host-inventory.ts';

/** A page ends with the project that fills it; the largest project has some hundred entries. */
const PAGE_ENTRIES = 2_000;

export const listInventory = async (
  host: Host,
  params: Params<'inventory.list'>,
): Promise<MethodResult<'inventory.list'>> => pageOf(await readHoldings(host), params);

export function pageOf(
  holdings: Holdings,
  { groups, after }: Params<'inventory.list'>,
  pageEntries = PAGE_ENTRIES,
): MethodResult<'inventory.list'> {
  const wanted = new Set(groups);
  const sizes = new Map<string, number>();
  for (const { project_id } of [...holdings.projects, ...holdings.branches, ...holdings.snapshots])
    sizes.set(project_id, (sizes.get(project_id) ?? 0) + 1);
  const rest = [...sizes.keys()]
    .filter((id) => wanted.has(groupOf(id)) && (after === null || id > after))
    .sort();
  const page = new Set<string>();
  let entries = 0;
  for (const id of rest) {
    page.add(id);
    entries += sizes.get(id) ?? 0;
    if (entries >= pageEntries) break;
  }
  const isOnPage = ({ project_id }: { project_id: string }) => page.has(project_id);
  return {
    projects: holdings.projects.filter(isOnPage),
    branches: holdings.branches.filter(isOnPage),
    snapshots: holdings.snapshots.filter(isOnPage),
    next: page.size < rest.length ? ([...page].at(-1) ?? null) : null,
  };
}
