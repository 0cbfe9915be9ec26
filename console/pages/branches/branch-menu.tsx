import type { Branch } from '../../app/resources.ts';
import { ActionMenu, type MenuEntry } from '../../components/menu.tsx';
import { BRANCHES_TEXT } from '../../strings/branches.ts';
import { TEXT } from '../../strings/common.ts';

/** What can be done with a branch; `protect` is for owners and admins. */
export type BranchAct = 'extend' | 'reset' | 'protect' | 'delete';
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
      label: BRANCHES_TEXT.createFrom,
      icon: 'branch',
      isDisabled: !mayEdit,
      onAction: onCreate,
    },
    {
      id: 'reset',
      label: BRANCHES_TEXT.reset,
      icon: 'refresh',
      shortcut: 's',
      isDisabled: !mayEdit || branch.status !== 'active',
      onAction: () => onAct('reset'),
    },
  ];
  if (!isMain) {
    entries.push({
      id: 'extend',
      label: BRANCHES_TEXT.extend,
      icon: 'clock',
      shortcut: 'e',
      isDisabled: !mayEdit,
      onAction: () => onAct('extend'),
    });
    if (mayProtect)
      entries.push({
        id: 'protect',
        label: branch.protected ? BRANCHES_TEXT.unprotect : BRANCHES_TEXT.protect,
        icon: 'lock',
        onAction: () => onAct('protect'),
      });
    entries.push({
      id: 'delete',
      label: BRANCHES_TEXT.delete,
      icon: 'trash',
      shortcut: 'd',
      isDangerous: true,
      isDisabled: !mayEdit,
      onAction: () => onAct('delete'),
    });
  }
  return <ActionMenu label={BRANCHES_TEXT.actionsOf(branch.branch_name)} entries={entries} />;
}
