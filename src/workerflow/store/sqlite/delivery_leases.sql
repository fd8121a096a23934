-- Deliveries whose handler was running when its worker ended: without error and without answer.
select instance_key from deliveries where delivered_at is null and attempts > 0 and last_error is null;
