import './branches.css';
import type { ReactNode } from 'react';
import {
  Button as AriaButton,
  Checkbox,
  type Selection,
  Tree,
  TreeItem,
  TreeItemContent,
} from 'react-aria-components';
import { bytes, dateTime, duration, plural, secondsSince, secondsUntil } from '../../../shared/format.ts';
import { BranchName, BranchStatus, STATUS_NAMES } from '../../components/branch.tsx';
import { Icon } from '../../components/icon.tsx';
import { ActionMenu, type MenuEntry } from '../../components/menu.tsx';
import { useNow } from '../../components/time.tsx';
import type { Branch } from '../../data/resources.ts';
import { TEXT } from '../../strings/common.ts';
import { type BranchNode, endOf } from './branch-rows.ts';

const ENDS = {
  expires: (left: string) => `Expires in ${left}`,
  lease: (left: string) => `Lease ends in ${left}`,
  deleted: (left: string) => `Deleted in ${left}`,
} as const;

const WIDTH = 72;
const HEIGHT = 20;

/** The course of a value over the last hour, and its last value as text. */
function Sparkline({ values }: { values: readonly number[] }) {
  const top = Math.max(1, ...values);
  const last = values.at(-1) ?? 0;
  // One value is a line as well.
  const drawn = values.length === 1 ? [last, last] : values;
  const step = WIDTH / Math.max(1, drawn.length - 1);
  const path = drawn
    .map(
      (value, index) =>
        `${(index * step).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`,
    )
    .join(' ');
  return (
    <span
      className="sparkline"
      role="img"
      aria-label={`${plural(last, 'connection')} now, at most ${top} in the last hour`}
    >
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} aria-hidden="true">
        <polyline points={path} fill="none" stroke="currentColor" strokeWidth="1.4" strokeLinejoin="round" />
      </svg>
      <span>{last}</span>
    </span>
  );
}

/** What the rows show besides the records of the branches. */
export interface Measures {
  sizes: ReadonlyMap<string, { size: number; own: number | null }>;
  /** Connections of the last hour. */
  connections: ReadonlyMap<string, readonly number[]>;
  /** Names of those who made branches, by their IDs. */
  makers: ReadonlyMap<string, string>;
}

const SOON_SECONDS = 86_400;

function End({ branch }: { branch: Branch }) {
  const now = useNow();
  const end = endOf(branch);
  if (end === null) return <span className="quiet">No end</span>;
  const left = secondsUntil(end.at, now);
  return (
    <span className={left < SOON_SECONDS ? 'soon' : ''} title={dateTime(end.at)}>
      {ENDS[end.what](duration(left))}
    </span>
  );
}

function Row({ branch, measures, menu }: { branch: Branch; measures: Measures; menu: ReactNode }) {
  const now = useNow();
  const maker = measures.makers.get(branch.created_by);
  const size = measures.sizes.get(branch.id);
  const connections = measures.connections.get(branch.id);
  return (
    <div className="branch-row">
      <span className="branch-name">
        <BranchName name={branch.branch_name} />
        {branch.protected && !branch.is_default && (
          <span className="badge plain">
            <Icon name="lock" /> Protected
          </span>
        )}
        {Object.entries(branch.labels).map(([name, value]) => (
          <span className="badge plain" key={name}>
            {name}={value}
          </span>
        ))}
        {maker !== undefined && <span className="maker quiet truncate">by {maker}</span>}
      </span>
      <span>
        <BranchStatus branch={branch} />
      </span>
      <span className="number">
        {size === undefined ? '–' : bytes(size.size)}
        {typeof size?.own === 'number' && (
          <span className="own" title={`Deleting it frees ${bytes(size.own)} of the disk.`}>
            {bytes(size.own)} own
          </span>
        )}
      </span>
      <span className="spark">{connections && <Sparkline values={connections} />}</span>
      <span className="quiet" title={dateTime(branch.created_at)}>
        {duration(secondsSince(branch.created_at, now))}
      </span>
      <End branch={branch} />
      <span className="number">{menu}</span>
    </div>
  );
}

interface BranchTreeProps {
  nodes: BranchNode[];
  measures: Measures;
  selected: Selection;
  onSelect: (selection: Selection) => void;
  onOpen: (branchId: string) => void;
  menuOf: (branch: Branch) => ReactNode;
}

/** The branches of a project, each below the one that it was cloned from. */
export function BranchTree({ nodes, measures, selected, onSelect, onOpen, menuOf }: BranchTreeProps) {
  const expanded = new Set<string>();
  const expand = ({ branch, children }: BranchNode) => {
    expanded.add(branch.id);
    children.forEach(expand);
  };
  nodes.forEach(expand);
  const item = ({ branch, children }: BranchNode) => (
    <TreeItem
      key={branch.id}
      id={branch.id}
      textValue={`${branch.branch_name}, ${STATUS_NAMES[branch.status]}`}
      className={branch.is_default ? 'branch-item main' : 'branch-item'}
    >
      <TreeItemContent>
        {({ hasChildItems, level }) => (
          <>
            {Array.from({ length: level - 1 }, (_, depth) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: lines of the tree by their depth
              <i className="tree-line" key={depth} />
            ))}
            {!branch.is_default ? (
              <Checkbox slot="selection" className="tree-check">
                <Icon name="check" />
              </Checkbox>
            ) : (
              <span className="tree-check-space" />
            )}
            {hasChildItems && (
              <AriaButton slot="chevron" className="tree-chevron">
                <Icon name="chevron" />
              </AriaButton>
            )}
            <Row branch={branch} measures={measures} menu={menuOf(branch)} />
          </>
        )}
      </TreeItemContent>
      {children.map(item)}
    </TreeItem>
  );
  return (
    <Tree
      aria-label="Branches"
      className="branch-tree"
      selectionMode="multiple"
      selectionBehavior="toggle"
      selectedKeys={selected}
      onSelectionChange={onSelect}
      onAction={(key) => onOpen(String(key))}
      disabledBehavior="selection"
      defaultExpandedKeys={expanded}
    >
      {nodes.map(item)}
    </Tree>
  );
}

/** What can be done with a branch; `protect` is for owners and admins. */
export type BranchAct = 'extend' | 'rename' | 'reset' | 'settings' | 'protect' | 'delete';
export type BranchPage = 'connect' | 'tables' | 'monitoring';

interface BranchMenuProps {
  branch: Branch;
  mayEdit: boolean;
  mayProtect: boolean;
  onOpen: (page: BranchPage) => void;
  onCreate: () => void;
  onAct: (act: BranchAct) => void;
}

export function BranchMenu({ branch, mayEdit, mayProtect, onOpen, onCreate, onAct }: BranchMenuProps) {
  const isMain = branch.is_default;
  const entries: MenuEntry[] = [
    {
      id: 'connect',
      label: TEXT.nav.connect,
      icon: 'link',
      shortcut: '↵',
      onAction: () => onOpen('connect'),
    },
    { id: 'tables', label: TEXT.nav.tables, icon: 'table', shortcut: 't', onAction: () => onOpen('tables') },
    { id: 'monitoring', label: TEXT.nav.monitoring, icon: 'graph', onAction: () => onOpen('monitoring') },
    {
      id: 'create',
      label: 'New branch from this',
      icon: 'branch',
      isDisabled: !mayEdit,
      onAction: onCreate,
    },
    {
      id: 'reset',
      label: 'Reset',
      icon: 'refresh',
      shortcut: 's',
      isDisabled: !mayEdit || branch.status !== 'active',
      onAction: () => onAct('reset'),
    },
    {
      id: 'settings',
      label: 'Settings of PostgreSQL',
      icon: 'gear',
      isDisabled: !mayEdit,
      onAction: () => onAct('settings'),
    },
  ];
  if (!isMain) {
    entries.push({
      id: 'extend',
      label: 'Extend',
      icon: 'clock',
      shortcut: 'e',
      isDisabled: !mayEdit,
      onAction: () => onAct('extend'),
    });
    entries.push({
      id: 'rename',
      label: 'Rename',
      icon: 'edit',
      isDisabled: !mayEdit || branch.status !== 'active',
      onAction: () => onAct('rename'),
    });
    if (mayProtect)
      entries.push({
        id: 'protect',
        label: branch.protected ? 'End protection' : 'Protect',
        icon: 'lock',
        onAction: () => onAct('protect'),
      });
    entries.push({
      id: 'delete',
      label: 'Delete',
      icon: 'trash',
      shortcut: 'd',
      isDangerous: true,
      isDisabled: !mayEdit || branch.protected,
      onAction: () => onAct('delete'),
    });
  }
  return <ActionMenu label={`Actions of ${branch.branch_name}`} entries={entries} />;
}
