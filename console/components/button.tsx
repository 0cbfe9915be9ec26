import type { ButtonHTMLAttributes } from 'react';
import { Icon, type IconName } from './icon.tsx';

interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  look?: 'primary' | 'danger' | 'bare' | 'danger primary';
  icon?: IconName;
  /** Work that the button started is running. It stays focusable. */
  busy?: boolean;
  compact?: boolean;
}

export function Button({ look, icon, busy, compact, className, children, onClick, ...rest }: ButtonProps) {
  const classes = ['button', look, compact && 'compact', icon && children === undefined && 'icon', className];
  return (
    <button
      type="button"
      {...rest}
      className={classes.filter(Boolean).join(' ')}
      aria-disabled={busy || undefined}
      onClick={(event) => {
        if (busy) event.preventDefault();
        else onClick?.(event);
      }}
    >
      {icon && <Icon name={icon} />}
      {children}
    </button>
  );
}
