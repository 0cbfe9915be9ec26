import {
  Button as AriaButton,
  Menu as AriaMenu,
  MenuItem,
  MenuTrigger,
  Popover,
} from 'react-aria-components';
import { Icon, type IconName } from './icon.tsx';

export interface MenuEntry {
  id: string;
  label: string;
  icon: IconName;
  onAction: () => void;
  isDisabled?: boolean;
  isDangerous?: boolean;
  shortcut?: string;
}

/** Actions behind a button with three dots. */
export const ActionMenu = ({ label, entries }: { label: string; entries: MenuEntry[] }) => (
  <MenuTrigger>
    <AriaButton className="button bare icon compact" aria-label={label}>
      <Icon name="dots" />
    </AriaButton>
    <Popover className="popover" placement="bottom end">
      <AriaMenu aria-label={label}>
        {entries.map(({ id, label: text, icon, onAction, isDisabled, isDangerous, shortcut }) => (
          <MenuItem
            key={id}
            id={id}
            textValue={text}
            onAction={onAction}
            isDisabled={isDisabled ?? false}
            className={isDangerous ? 'danger' : ''}
          >
            <Icon name={icon} />
            {text}
            {shortcut && <kbd>{shortcut}</kbd>}
          </MenuItem>
        ))}
      </AriaMenu>
    </Popover>
  </MenuTrigger>
);
